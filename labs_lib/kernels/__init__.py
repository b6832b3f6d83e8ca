"""The mathematics of policy training: pure functions on tensors, no model, no state, no files.

Shapes used everywhere: A answers, T answer tokens, P prompts, G answers per prompt (A = P*G, prompt-major),
V vocabulary, H hidden size. Import from the modules: ``from labs_lib.kernels.kl import prefix_statistics``.
"""
