# results/tracking/<study>/<method>.done: the runs of a method are in MLflow, as soon as they are tested.
rule track_method:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        scores=f"{RESULTS}/scores/{{study}}/{{method}}.csv",
        runs=paths(RUN),
        plans=paths(PLAN),
        # A row shows the epsilon of its method as published too.
        published=paths(PLAN, published),
    output:
        f"{RESULTS}/tracking/{{study}}/{{method}}.done",
    log:
        "logs/track/{study}/{method}.log",
    # Beside the training of other methods, not after it.
    priority: 1
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        uri=mlflow_export.without_credentials(TRACKING),
        code=code("track"),
    message:
        "MLflow runs of {wildcards.method} in {wildcards.study}"
    shell:
        script(
            "track",
            "--study {wildcards.study} --methods {wildcards.method} --results RESULTS --out {output:q}",
        )


# results/tracking/<study>.done: all runs of the study are in MLflow. If the server does not answer, the marker starts with "pending",
# and the next snakemake tries again.
rule track:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        methods=ask(lambda wc: PROJECT.tracked(wc.study)),
        table=f"{RESULTS}/tables/{{study}}.csv",
        summary=f"{RESULTS}/tables/{{study}}.md",
        runs=paths(RUN),
        plans=paths(PLAN),
        figures=lambda wc: PROJECT.figures(wc.study),
    output:
        f"{RESULTS}/tracking/{{study}}.done",
    log:
        "logs/track/{study}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        # Without name and password, which the script takes from the environment.
        uri=mlflow_export.without_credentials(TRACKING),
        # The number of failed attempts: a change makes Snakemake try again.
        failures=lambda wc: PROJECT.failures(wc.study),
        code=code("track"),
    message:
        "MLflow runs of {wildcards.study}"
    shell:
        script(
            "track",
            "--study {wildcards.study} --results RESULTS --failures {params.failures} --out {output:q}",
        )
        + " && {{ grep ^warning: {log} >&2 || true; }}"
