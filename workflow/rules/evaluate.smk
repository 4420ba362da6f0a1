# results/scores/<study>/<method>.csv: what every client gets out of the trained models, one row per cell and client. The runs
# of a study's search are in <study>/search.
rule evaluate:
    input:
        search=ask(
            lambda wc: [f"{RESULTS}/searches/{wc.study}.json"]
            * PROJECT.waits(dict(wc.items()))
        ),
        runs=ask(lambda wc: each(RUN, cells_of(wc))),
        plans=ask(lambda wc: each(PLAN, cells_of(wc))),
        partitions=ask(lambda wc: each(PARTITION, cells_of(wc))),
        data=ask(lambda wc: each(DATASET, cells_of(wc))),
    output:
        f"{RESULTS}/scores/{{study}}/{{method}}.csv",
    log:
        "logs/evaluate/{study}/{method}.log",
    wildcard_constraints:
        study=r"\w+(/search)?",
    conda:
        "../../envs/pflpipe.yaml"
    threads: SETTINGS.processes
    resources:
        # One run is in memory at a time, and of the clients' states those of a group of clients.
        mem_mb=lambda wc, input, attempt: attempt
        * SETTINGS.processes
        * max(2000, int(20 * project.largest_mb(input.data))),
        runtime=lambda wc, attempt: attempt * 120,
        gpu=GPUS * SETTINGS.processes,
        device=SETTINGS.device,
        backend=SETTINGS.backend,
    params:
        measures=f"{RESULTS}/benchmarks/evaluate/{{study}}/{{method}}.tsv",
        cells=ask(lambda wc: each("{cell}", cells_of(wc))),
        data=lambda wc: DATA,
        results=lambda wc: RESULTS,
        code=ask(lambda wc: PROJECT.testing_code(wc.study, cells_of(wc))),
    message:
        "Testing {wildcards.method} of {wildcards.study}"
    shell:
        script(
            "evaluate",
            "--study {wildcards.study} --cells {params.cells:q} --data {params.data:q} --results {params.results:q}"
            " --out {output:q} --device {resources.device} --backend {resources.backend} --processes {threads}",
            measured=True,
        )
