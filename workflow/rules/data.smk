# data/<dataset>.npz: checked arrays, from scikit-learn, a download, or the user's own file named in config.yaml.
rule data:
    input:
        source=lambda wc: PROJECT.source_files(wc.dataset)[0],
    output:
        DATASET,
    log:
        "logs/data/{dataset}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        measures=f"{RESULTS}/benchmarks/data/{{dataset}}.tsv",
        source=lambda wc: (
            ["--source", str(SETTINGS.datasets[wc.dataset])]
            if wc.dataset in SETTINGS.datasets
            else []
        ),
        downloads=f"{DATA}/downloads",
        code=code("data", lambda wc: PROJECT.source_files(wc.dataset)[1]),
    message:
        "Preparing {wildcards.dataset}"
    shell:
        script(
            "data",
            "--dataset {wildcards.dataset} {params.source:q} --downloads {params.downloads:q} --target {output:q}",
            measured=True,
        )
