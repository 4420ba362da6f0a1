# results/figures/<study>/<figure>.png, .svg, .pdf: a figure of a table; pflpipe.study.figures lists them.
rule figure:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        table=f"{RESULTS}/tables/{{study}}.csv",
        scores=ask(lambda wc: PROJECT.scores(wc.study)),
        runs=paths(RUN),
        partitions=paths(PARTITION),
        data=paths(DATASET),
    output:
        png=f"{RESULTS}/figures/{{study}}/{{figure}}.png",
        svg=f"{RESULTS}/figures/{{study}}/{{figure}}.svg",
        pdf=f"{RESULTS}/figures/{{study}}/{{figure}}.pdf",
    log:
        "logs/figure/{study}/{figure}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        figure=ask(lambda wc: PROJECT.drawing(wc.study, wc.figure).name),
        code=code("figure", lambda wc: PROJECT.style_files()),
    message:
        "Figure {wildcards.figure} of {wildcards.study}"
    shell:
        script(
            "figure",
            "--study {wildcards.study} --figure {params.figure} --results RESULTS --data DATA"
            " --out {output.png:q}",
        )
