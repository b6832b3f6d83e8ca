"""OfficeHelpPrefs-v1: short computer-help answers, a finite grammar of them, and the prompts that ask."""
