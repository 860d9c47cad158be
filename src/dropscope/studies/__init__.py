"""Published studies, each over the same flow as any other run. Only the command line imports them."""
