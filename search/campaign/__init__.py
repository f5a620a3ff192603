"""The command `ideatree campaign`: many problems, and several arms, searched under one budget."""
