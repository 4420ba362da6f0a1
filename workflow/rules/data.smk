# data/<dataset>.npz: checked arrays, from scikit-learn, a download, or the user's own files named in config.yaml.
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
        source=lambda wc: PROJECT.source_words(wc.dataset),
        code=code("data", lambda wc: PROJECT.source_files(wc.dataset)[1]),
    message:
        "Preparing {wildcards.dataset}"
    shell:
        script(
            "data",
            "--dataset {wildcards.dataset} {params.source:q} --downloads DATA/downloads --target {output:q}",
            measured="{wildcards.dataset}",
        )
        # What was understood, rows, users, classes and kind, and what is wrong with it.
        + " && grep -e '^{wildcards.dataset}: ' -e '^warning: ' {log}"
