"""How long kernel and baseline take, on a GPU and on a CPU, and checks that the times are honest."""
