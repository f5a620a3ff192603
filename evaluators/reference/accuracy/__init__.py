"""How far a kernel's answer is from the right one, and how far it may be."""
