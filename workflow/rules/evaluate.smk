# results/scores/<study>/<method>.csv: the metrics of every client, one row per cell and client. The runs of a study's search
# are in <study>/search.
rule evaluate:
    input:
        search=ask(
            lambda wc: [f"{RESULTS}/searches/{wc.study}.json"]
            * PROJECT.waits(dict(wc.items()))
        ),
        runs=paths(RUN),
        plans=paths(PLAN),
        partitions=paths(PARTITION),
        data=paths(EXAMPLES),
    output:
        f"{RESULTS}/scores/{{study}}/{{method}}.csv",
    log:
        "logs/evaluate/{study}/{method}.log",
    wildcard_constraints:
        study=r"\w+(/search)?",
    priority: 1
    conda:
        "../../envs/pflpipe.yaml"
    threads: SETTINGS.processes
    resources:
        # Memory holds one run at a time, and the states of one group of clients.
        mem_mb=lambda wc, input, attempt: attempt
        * SETTINGS.processes
        * cost.megabytes_of_process(input.data),
        runtime=lambda wc, attempt: attempt * 120,
        gpu=GPUS * SETTINGS.processes,
        compute=COMPUTE,
    params:
        cells=paths("{cell}"),
        code=ask(lambda wc: PROJECT.testing_code(wc.study, cells_of(wc))),
    message:
        "Testing {wildcards.method} of {wildcards.study}"
    shell:
        script(
            "evaluate",
            "--study {wildcards.study} --cells {params.cells:q} --data DATA --results RESULTS"
            " --out {output:q} --code {params.code:q} {resources.compute} --processes {threads}",
            measured="{wildcards.study}/{wildcards.method}",
        )
