"""How far a kernel's answer is from the reference's, and how far it may be."""
