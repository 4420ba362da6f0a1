# results/runs/<run>/: one training run, the same for every cell that needs it, whatever the study: rounds.csv, timing.csv,
# state.pt, states.bin and run.json. A study may have ten thousand of them.
rule train:
    input:
        plan=paths(PLAN),
        partition=paths(PARTITION),
        data=paths(EXAMPLES),
    output:
        # One output instead of five files: Snakemake looks at every output of every run, for every rule that needs the run.
        stored(RUN) if SETTINGS.store else directory(RUN),
    log:
        "logs/train/{run}.log",
    conda:
        "../../envs/pflpipe.yaml"
    threads: SETTINGS.processes
    # How a run is computed is a resource and not a parameter: changing it repeats nothing that is done.
    resources:
        mem_mb=lambda wc, input, attempt: attempt
        * SETTINGS.processes
        * cost.megabytes_of_process(input.data),
        runtime=lambda wc, attempt: attempt * 240,
        gpu=GPUS * SETTINGS.processes,
        compute=f"{COMPUTE} --checkpoint-seconds {SETTINGS.checkpoint_seconds}",
    params:
        cell=ask(lambda wc: canonical_json(cells_of(wc)[0].to_dict())),
        code=ask(lambda wc: PROJECT.training_code(cells_of(wc))),
    message:
        "Training {wildcards.run}"
    shell:
        script(
            "train",
            "--cell {params.cell:q} --code {params.code:q} --inputs {input.plan:q} {input.partition:q} {input.data:q}"
            " --out {output:q} --checkpoints RESULTS/checkpoints {resources.compute} --processes {threads}",
            measured="{wildcards.run}",
        )
