# results/tables/<study>.csv, .md, .tex: the comparison. all.csv joins the studies of config.yaml; its rule also makes
# their figures and MLflow runs.
rule table:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        scores=ask(lambda wc: PROJECT.scores(wc.study)),
        runs=paths(RUN),
        plans=paths(PLAN),
        published=paths(PLAN, published),
        audits=ask(lambda wc: PROJECT.audits(cells_of(wc))),
    output:
        csv=f"{RESULTS}/tables/{{study}}.csv",
        md=f"{RESULTS}/tables/{{study}}.md",
        tex=f"{RESULTS}/tables/{{study}}.tex",
    log:
        "logs/table/{study}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code("table"),
    message:
        "Table of {wildcards.study}"
    shell:
        script(
            "table",
            "--study {wildcards.study} --results RESULTS --audits {input.audits:q} --out {output.csv:q}",
        )


rule all_csv:
    input:
        tables=[f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        figures=[
            figure for study in SETTINGS.studies for figure in PROJECT.figures(study)
        ],
        tracking=[f"{RESULTS}/tracking/{study}.done" for study in SETTINGS.studies],
    output:
        f"{RESULTS}/tables/all.csv",
    log:
        "logs/all_csv.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code("all_csv"),
    message:
        "Joining {input.tables}"
    shell:
        script("all_csv", "--tables {input.tables:q} --out {output:q}")
