# results/plans/<id>.json: the calibrated mechanism and its ledger, before any training.
rule plan:
    input:
        partition=ask(
            lambda wc: files(
                PARTITION, [cell for cell in cells_of(wc) if cell.plan_needs_partition]
            )
        ),
        data=ask(
            lambda wc: each(
                DATASET, [cell for cell in cells_of(wc) if cell.plan_needs_data]
            )
        ),
    output:
        stored(PLAN),
    log:
        "logs/plan/{plan}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        cell=ask(lambda wc: project.plan_request(*cells_of(wc))),
        code=code("plan"),
        partition=lambda wc, input: (
            ["--partition", *input.partition] if input.partition else []
        ),
        data=lambda wc, input: ["--data", *input.data] if input.data else [],
    message:
        "Planning {wildcards.plan}"
    shell:
        script(
            "plan",
            "--cell {params.cell:q} {params.partition:q} {params.data:q} --out {output:q}",
            measured="{wildcards.plan}",
        )
