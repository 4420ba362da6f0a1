# results/released/<study>/: the part of a study that an epsilon covers, by itself, to be published. Runs that are not certified are
# not needed for it.
rule released:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        runs=ask(lambda wc: each(RUN, certified(cells_of(wc)))),
        plans=ask(lambda wc: each(PLAN, certified(cells_of(wc)))),
        audits=ask(lambda wc: PROJECT.audits(cells_of(wc))),
    output:
        directory(f"{RESULTS}/released/{{study}}"),
    log:
        "logs/released/{study}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        results=lambda wc: RESULTS,
        code=ask(
            lambda wc: PROJECT.code(
                "released",
                [
                    PROJECT.package / f"report/released.{kind}"
                    for kind in ("md", "yaml")
                ],
            )
        ),
    message:
        "Released part of {wildcards.study}"
    shell:
        script(
            "released",
            "--study {wildcards.study} --results {params.results:q} --audits {input.audits:q} --out {output:q}",
        )
