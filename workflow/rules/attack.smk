# results/attacks/<attack>/<cell>.npz: the result of an attack on the clients of one cell, which it simulates itself.
# results/figures/<study>/<attack>.png, .svg, .pdf, .csv: the same for all cells of a study that the attack targets.
ATTACK = f"{RESULTS}/attacks/{{attack}}/{{cell}}.npz"


rule attack:
    input:
        plan=paths(PLAN),
        partition=paths(PARTITION),
        data=paths(EXAMPLES),
    output:
        ATTACK,
    log:
        "logs/attack/{attack}/{cell}.log",
    conda:
        "../../envs/pflpipe.yaml"
    threads: 1
    resources:
        mem_mb=lambda wc, input, attempt: attempt * max(3000, int(20 * input.size_mb)),
        runtime=lambda wc, attempt: attempt * 240,
        gpu=GPUS,
        compute=COMPUTE,
    params:
        cell=ask(lambda wc: canonical_json(cells_of(wc)[0].to_dict())),
        code=code(
            "attack",
            lambda wc: [
                PROJECT.package / f"attacks/{wc.attack}.py",
                *PROJECT.files_of(cells_of(wc)),
            ],
        ),
    message:
        "Attack {wildcards.attack} on {wildcards.cell}"
    shell:
        script(
            "attack",
            "--attack {wildcards.attack} --cell {params.cell:q} --plan {input.plan:q} --partition {input.partition:q}"
            " --data {input.data:q} --out {output:q} {resources.compute}",
            measured="{wildcards.attack}/{wildcards.cell}",
        )


rule attack_figure:
    input:
        study=ask(lambda wc: PROJECT.study_files(wc.study)),
        attacks=ask(
            lambda wc: each(
                ATTACK.replace("{attack}", wc.attack),
                PROJECT.attacked(dict(wc.items())),
            )
        ),
        plans=ask(lambda wc: files(PLAN, PROJECT.attacked(dict(wc.items())))),
    output:
        png=f"{RESULTS}/figures/{{study}}/{{attack}}.png",
        svg=f"{RESULTS}/figures/{{study}}/{{attack}}.svg",
        pdf=f"{RESULTS}/figures/{{study}}/{{attack}}.pdf",
        csv=f"{RESULTS}/figures/{{study}}/{{attack}}.csv",
    log:
        "logs/attack_figure/{study}/{attack}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code("attack_figure", lambda wc: PROJECT.style_files()),
    message:
        "Figure of attack {wildcards.attack} in {wildcards.study}"
    shell:
        script(
            "attack_figure",
            "--attack {wildcards.attack} --study {wildcards.study} --results RESULTS --out {output.png:q}",
        )
