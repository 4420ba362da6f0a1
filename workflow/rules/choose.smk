# results/searches/<study>.json: the hyper-parameters that a study's search chose on validation data. Only then are the study's
# own runs known, hence a checkpoint. Studies without a search never ask for it.
checkpoint choose:
    input:
        scores=ask(lambda wc: PROJECT.trials(wc.study, PROJECT.scores)),
        plans=ask(
            lambda wc: PROJECT.trials(
                wc.study, lambda search: files(PLAN, PROJECT.study(search).cells)
            )
        ),
    output:
        f"{RESULTS}/searches/{{study}}.json",
    log:
        "logs/choose/{study}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        # The script reads the study's file. It runs again if the grid changes, but not if the description does.
        grid=ask(lambda wc: PROJECT.outline(wc.study).grid),
        code=code("choose"),
    message:
        "Choosing the hyper-parameters of {wildcards.study}"
    shell:
        script(
            "choose",
            "--study {wildcards.study} --results RESULTS --out {output:q}",
        )
