"""The formats of FlashInfer Trace and SOL-ExecBench: a *definition* (axes, inputs, outputs, a reference
`run`), *workloads*, which give values to the axes, *solutions*, which are kernels, and *traces*, which are
verdicts. Facts on the formats are in `docs/guides/definitions.md`."""
