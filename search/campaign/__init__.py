"""The command `ideatree campaign`: many problems, and one or several arms, under one budget."""
