"""Building, checking and timing of untrusted kernels. Knows nothing of search.

Where to look, from the command down to the machine; each file says more at its top. Imports point down:

    the command   evaluate, audit, baseline, score (operator_score), trace; report; what all commands
                  share: cli (Hydra applications), suite_config, device_config, config (what can be set),
                  config_errors, config_help, config_completion
    words         problem, evaluation, cases, five_stages, overhead, scores, reference_audit, opening,
                  verdict, timing (its statistics); cause, nearest, atomic_write, option, kept_lines;
                  problems/ has the shipped references
    scheduler/    pool, on_cases, known_problems, job, device_queue, device_health, retries; host:
                  local_host (threads), ray_host
    device/       worker, settings, watchdog, open_problems, child_processes, candidate_runner, turns
    judge/        judge_process, reference_session (session_options), staging (graphed_draws), canary,
                  speed_limits, device_memory (memory_plan); runner_client and calibration, for a
                  device in gpu_timing and cpu_timing; candidate_evaluation with its parts
                  correctness_checks, timing_checks, evenness, attribution (work_share, stack_samples,
                  vendor_kernels); head_to_head
    build/        builder, build_cache
    runner/       runner_process, messages, failures, output_forms, shared_buffers, soiled_memory;
                  fork_server, node_fork_server, prefork; thin_headers (headers/), triton_precompile
    reference/    loading, reference_model, running_reference, answer, comparison (differences,
                  sampled_elements), random_outputs, validation;
                  float64 (row_slices), rounding, shifts, jumps, weight_changes, dependent_calls;
                  containers, strided_layouts, input_distributions, usable_distributions;
                  operation_count (dispatch_mode), machine_peaks, roofline; audit
    suites/       suite: what a suite is; kernelbench; operators, of case_calls, operator_call,
                  op_samples, facto, telling_calls, out_forms and random_operators;
                  operator_folder; traces (files) of traced_call, trace_grammar, trace_inputs,
                  trace_recording
    isolation/    confinement, namespaces, scratch, vendor_libraries
    system/       channel, deadline, process_tree, process_inspection, cuda_driver, nvml, cupti_trace,
                  elf, user_cache
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
"""This package's folder, from which its files are found: a module that moves takes no path along."""
