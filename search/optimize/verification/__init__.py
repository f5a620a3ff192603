"""Compares a model with kernels to the original and times both.

launcher runs the verification in a child process; child_process compares the outputs, in training also the
gradients and the losses (loss_curves); yardstick has what the original computes, errors measures distances;
model_timing times each way of running the model, from interleaved readings; ablation and compiled_code
measure what each kernel is worth in its place; forward_plan reaches the installed kernels; record is the
result, summary its text.
"""
