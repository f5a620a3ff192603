"""Searches for fast GPU kernels: ideas, variants, rounds.

Where to look, from the commands down to the records; each file says more at its top. Imports point down:

    commands      run/, compare/, campaign/, optimize/, harvest/, report/, mcp/, prompt/, queue/: each has a
                  __main__
    run/          config, specification (SearchSpec: one search), launch (runs one), searches (runs many),
                  winner_checks (held-out configurations), local_diagnoser, queued_search
    compare/      plan, searching, shared_verdicts, curves, language_gains, statistics, summary (words and
                  files), comparison_frames, comparison_page
    queue/        waiting (what each search of a queue waits for)
    prompt/       estimate (calls, tokens, dollars), sections
    campaign/     config, running, schedulers, slices (how far each search has come, stop rules), results,
                  campaign_view, campaign_page
    optimize/     stages: the order of things; model_config, models/, profiling/, extraction/, searching,
                  adapters, installation/, verification/, outcome, readme, profile_page
    harvest/      corpus, recorded_calls, rows, format (formats/), conversations, identity, duplicates,
                  benchmarks, dataset
    report/       the HTML report: run_page, page_data, run_frames, corpus_frames (of many runs), gains,
                  texts, html (assets/), observer, fresh_page
    mcp/          tools, answers
    app/          what all commands share: run_folders, resuming, registry (class names in stored configs),
                  overrides, plug_ins, report_packages, device_facts (of a device that is elsewhere)
    engine/       one search: engine, steady_state (searches without rounds), pipeline (idea to verdicts),
                  session (records, budget, confirmation), requests (to the evaluator), race, run_folder,
                  in_flight, faults (of plug-ins), agent (steered from outside), outside_watch, diagnoses,
                  probes, library_seeds, library_winner
    strategies/   one policy per file: which seeds are expanded, and how widely; values (shared statistics)
    proposers/    llm/ (its prompt templates in templates/), playbook/, landscape, replay, recorded_tree
    observers/    what watches a run: console (live_view, plain, marks), wandb (wandb_figures), calls;
                  run_progress (progress_items), rows, wording
    protocols     what the engine asks of strategies, proposers, evaluators, libraries and observers
    recordings/   recorded runs that ship with the package; archives (runs in one file), verdicts (the
                  evaluator that repeats theirs)
    models/       calls to language models: client (budget, retries, waiting, record), cut_off (answers),
                  service (whether a model can be asked), providers/ (http, replies: what they share)
    records/      tree (ideas, variants, shown_history: what of it a model is shown), events, journal
                  (journal_codec), run_state, budget, ranking, model_calls (questions, answers, prices),
                  probe_request, time_use (of devices), outside (what others have to answer)
"""
