# results/released/<study>/: the part of a study that an epsilon covers, to be published. It needs no run that is not certified.
rule released:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        runs=paths(RUN, certified),
        plans=paths(PLAN, certified),
        audits=ask(lambda wc: PROJECT.audits(cells_of(wc))),
    output:
        directory(f"{RESULTS}/released/{{study}}"),
    log:
        "logs/released/{study}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code(
            "released",
            lambda wc: [
                PROJECT.package / f"pipeline/released.{kind}"
                for kind in ("md", "yaml")
            ],
        ),
    message:
        "Released part of {wildcards.study}"
    shell:
        script(
            "released",
            "--study {wildcards.study} --results RESULTS --audits {input.audits:q} --out {output:q}",
        )
