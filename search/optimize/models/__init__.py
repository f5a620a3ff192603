"""Loads the model: source from the user's code, architectures from transformers, torchvision or diffusers."""
