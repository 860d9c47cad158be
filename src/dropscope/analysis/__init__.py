"""What rows say: functions of tables, usable on any run. None of them sees a model."""
