"""Bases, tokenizers and chat templates: how a policy is loaded and what identifies it."""
