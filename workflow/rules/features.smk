# data/<dataset>.<kind>-<digest>.npz: features of a data set, in the form of a data set. With a reference, the features of a public data
# set are made first.
rule features:
    input:
        data=paths(DATASET),
        reference=paths(
            EXAMPLES, lambda cells: filter(None, [cell.reference for cell in cells])
        ),
        given=ask(lambda wc: cells_of(wc)[0].features.file or []),
    output:
        EXAMPLES,
    log:
        "logs/features/{data}.log",
    conda:
        "../../envs/pflpipe.yaml"
    threads: 1
    resources:
        mem_mb=lambda wc, input, attempt: attempt * max(2000, int(20 * input.size_mb)),
        runtime=lambda wc, attempt: attempt * 120,
    params:
        features=ask(lambda wc: canonical_json(vars(cells_of(wc)[0].features))),
        reference=lambda wc, input: (
            ["--reference", *input.reference] if input.reference else []
        ),
        code=code("features"),
    message:
        "Features {wildcards.data}"
    shell:
        script(
            "features",
            "--features {params.features:q} --data {input.data:q} {params.reference:q} --target {output:q}",
            measured="{wildcards.data}",
        )
