"""From the lab to an existing engine: TRL's GRPOTrainer, started by accelerate, on the same task, verifier and corpus.

No lab but 07 imports this package, and nothing here imports TRL, accelerate or datasets before it is used: `make scale`
installs them.
"""
