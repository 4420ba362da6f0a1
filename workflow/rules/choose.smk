# results/searches/<study>.json: the hyper-parameters that a study's search chose on validation data. Only then are the study's
# own runs known, hence a checkpoint. Studies without a search never ask for it.
checkpoint choose:
    input:
        script=SCRIPTS / "choose.py",
        code=PROJECT.code("choose"),
        scores=lambda wc: scores_of(f"{wc.study}/search"),
        plans=lambda wc: each(PLAN, answer(PROJECT.study, f"{wc.study}/search").cells),
    output:
        f"{RESULTS}/searches/{{study}}.json",
    log:
        "logs/choose/{study}.log",
    conda:
        "../../envs/pflpipe.yaml"
    params:
        # The script reads the study's file; it chooses again when the grid changes, not when a description does.
        grid=lambda wc: answer(PROJECT.outline, wc.study).grid,
        results=lambda wc: RESULTS,
    message:
        "Choosing the hyper-parameters of {wildcards.study}"
    shell:
        "python {input.script} --study {wildcards.study} --results {params.results:q} --out {output:q} > {log} 2>&1"
