# results/attacks/<attack>/<cell>.npz: what an adversary finds out about the clients of one cell; it simulates the cell itself.
# results/figures/<study>/<attack>.png, .svg, .csv: the same for all cells of a study that the attack is about.
rule attack:
    input:
        script=SCRIPTS / "attack.py",
        code=lambda wc: PROJECT.code("attack", methods_of(wc), [wc.attack]),
        plan=lambda wc: each(PLAN, cells_of(wc)),
        partition=lambda wc: each(PARTITION, cells_of(wc)),
        data=lambda wc: each(DATASET, cells_of(wc)),
    output:
        ATTACK,
    log:
        "logs/attack/{attack}/{cell}.log",
    benchmark:
        f"{RESULTS}/benchmarks/attack/{{attack}}/{{cell}}.tsv"
    conda:
        "../../envs/pflpipe.yaml"
    threads: 1
    resources:
        mem_mb=lambda wc, input, attempt: attempt * max(3000, int(20 * input.size_mb)),
        runtime=lambda wc, attempt: attempt * 240,
        gpu=int(SETTINGS.device.startswith("cuda")),
        device=SETTINGS.device,
        backend=SETTINGS.backend,
    params:
        cell=lambda wc: canonical_json(cells_of(wc)[0].to_dict()),
    message:
        "Attack {wildcards.attack} on {wildcards.cell}"
    shell:
        "python {input.script} --attack {wildcards.attack} --cell {params.cell:q} --plan {input.plan:q}"
        " --partition {input.partition:q} --data {input.data:q} --out {output:q} --device {resources.device}"
        " --backend {resources.backend} > {log} 2>&1"


rule attack_figure:
    input:
        script=SCRIPTS / "attack_figure.py",
        code=lambda wc: PROJECT.code("attack_figure", [], [wc.attack]),
        study=lambda wc: files_of_study(wc.study),
        attacks=lambda wc: each(ATTACK.replace("{attack}", wc.attack), attacked(wc)),
        plans=lambda wc: each(PLAN, attacked(wc)),
    output:
        png=report(
            f"{RESULTS}/figures/{{study}}/{{attack}}.png",
            caption="../report/attack.rst",
            category="{study}",
            labels={"what": "attack: {attack}"},
        ),
        svg=f"{RESULTS}/figures/{{study}}/{{attack}}.svg",
        csv=f"{RESULTS}/figures/{{study}}/{{attack}}.csv",
    log:
        "logs/attack_figure/{study}/{attack}.log",
    conda:
        "../../envs/pflpipe.yaml"
    params:
        results=lambda wc: RESULTS,
    message:
        "Figure of attack {wildcards.attack} in {wildcards.study}"
    shell:
        "python {input.script} --attack {wildcards.attack} --study {wildcards.study} --results {params.results:q}"
        " --out {output.png:q} > {log} 2>&1"
