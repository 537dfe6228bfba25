"""What a stage does next. Pure: events in, instructions out; no clock, no torch, no threads."""
