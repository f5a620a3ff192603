"""Which model: config has `model=…` and the keys below it, source makes a model of the user's own code,
architectures one of transformers, torchvision or diffusers.
"""
