"""Training loops that read from top to bottom: schedule, supervised fine-tuning, GRPO, and the run that saves."""
