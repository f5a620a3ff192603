"""Builds, checks and times untrusted kernels. Knows nothing of the search.

Where to look, from the commands down to the machine; each file says more at its top. Imports point down:

    commands      evaluate/, audit/, baseline/, diagnose/, probe/, score/ (operator_score,
                  solution_score, backends), trace/, serve/ (a worker of a queue): each has a __main__
    app/          what all commands share: command (the Hydra application), config (what can be set), help,
                  completion, config_errors, words (quoted for Hydra), suite_config, device_config,
                  kernel_file, verdict_report (a verdict in words)
    queue/        a queue in a folder that machines share: requests, verdicts, queue_folder (its files),
                  leases (who works on what), turns (fairness between searches), queue_evaluator (for
                  searches), serving (a worker) from sources, archive (pack and import)
    profiling/    what a kernel's profile means: facts of its levels, read by binaries (occupancy),
                  vectorization, launches and counters; rules (the table; evidence, code_checks,
                  trace_checks, counter_checks) and diagnosing (the diagnosis); profiler (runs
                  profiled_call with stand-ins for compilers)
    scheduler/    where candidates queue: pool; lanes (builds and measurements), retries, job, on_cases,
                  on_configurations, companions (timed together), known_problems; devices, device_queue,
                  device_health, device_use; host: local_host (threads), ray_host
    rewards/      for training: reward (what a policy is), policies/: correctness, log_speedup,
                  roofline_share, staged, improvement; completions (kernels in a model's answer);
                  http_server and guard around server, which answers messages by requested_problems, verdicts
                  and line
    device/       one device's worker: worker, settings, watchdog, open_problems, child_processes,
                  candidate_runner, candidate_turns
    judge/        the trusted process: judge_process, reference_session (session_options), staging
                  (graphed_draws), canary, device_memory (memory_plan), runner_client; candidate_evaluation
                  (the verdict), probe_measurement, correctness_checks, head_to_head; timing/:
                  paired_sampling (here blocks of kernel and baseline alternate), gpu_timing, cpu_timing,
                  calibration, timing_checks, evenness, speed_limits; attribution/: attribution,
                  work_share, stack_samples, vendor_kernels
    suites/       suite: what a suite is; kernelbench; robust_kbench; operators, from case_calls,
                  operator_call, op_samples, facto, informative_calls, out_forms and random_operators;
                  operator_folder; shape_lists (Atrex-Bench, KernelBench-Hard); workloads (which are timed);
                  definitions/ (FlashInfer Trace, SOL-ExecBench): files, reference, solutions, traces;
                  traced/: call, grammar, inputs, recording, files
    build/        builder, build_cache, toolchain (what this machine lacks)
    runner/       the untrusted process: runner_process, messages, failures, output_forms, shared_buffers,
                  poisoned_memory; kept_outputs; fork_server, node_fork_server, prefork; thin_headers,
                  precompile (as_on_gpu)
    reference/    loading (neighbours), gradients (of a kernel for training), reference_model,
                  running_reference, answer, random_outputs, validation, containers, dispatch_mode,
                  judging_power (what a reference is worth as a judge); accuracy/: comparison (differences,
                  sampled_elements), float64 (row_slices), rounding, shifts, jumps, choices;
                  inputs/: input_distributions (border_places), usable_distributions (special_integers),
                  strided_layouts, weight_changes, dependent_calls, near_repeats; cost/: operation_count,
                  machine_peaks, roofline
    isolation/    confinement, namespaces, scratch, vendor_libraries
    system/       channel, deadline, process_tree, process_inspection, machine_memory, author_facts,
                  installed_languages, cuda_driver, nvml, cupti_trace, cuobjdump, elf, user_cache
    records/      problem, evaluation, cases, configurations (that a kernel declares), race, verdict, timing
                  (its statistics), scores (fast_p, pass@k), five_stages, overhead, reference_audit, opening,
                  time_spent (leases of devices), diagnosis, probe, resources (of compiled functions)
    base/         languages (of kernels), cause, compiler_messages, nearest, atomic_write, jsonl_store,
                  json_record, option, source_file, source_comment, system_error, usage_error, own_version
    problems/     the shipped references
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""This package's folder, from which its files are found: a module that moves takes no path along."""
