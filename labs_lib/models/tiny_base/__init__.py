"""How `assets/tiny-base` is built: its text, tokenizer, training and model card."""
