# results/plans/<id>.json: the calibrated mechanism and what it is worth, before anything is trained.
rule plan:
    input:
        script=SCRIPTS / "plan.py",
        code=PROJECT.code("plan"),
        partition=lambda wc: each(
            PARTITION, [cell for cell in cells_of(wc) if cell.plan_needs_partition]
        ),
    output:
        PLAN,
    log:
        "logs/plan/{plan}.log",
    benchmark:
        f"{RESULTS}/benchmarks/plan/{{plan}}.tsv"
    conda:
        "../../envs/pflpipe.yaml"
    params:
        cell=lambda wc: plan_request(*cells_of(wc)),
        partition=lambda wc, input: (
            ["--partition", *input.partition] if input.partition else []
        ),
    message:
        "Planning {wildcards.plan}"
    shell:
        "python {input.script} --cell {params.cell:q} {params.partition:q} --out {output:q} > {log} 2>&1"
