"""The audit of OfficeHelp: corpus, rubric, LoRA SFT, judges, PPO, DPO, and the recorded study, in plain Python."""
