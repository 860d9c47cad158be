"""The published studies, each over the same flow as any other run. Nothing outside this package imports it but the
command line."""
