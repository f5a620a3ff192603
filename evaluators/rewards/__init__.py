"""The evaluator as a reward for training kernel-writing models: reward policies, and a server over HTTP."""
