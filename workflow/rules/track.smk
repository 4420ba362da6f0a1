# results/tracking/<study>.done: the study's runs are in MLflow. One job writes them. If the server does not answer, the marker
# starts with "pending", and the next snakemake tries again.
rule track:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
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
