# results/partitions/<id>.npz: the examples of each client, shared by all cells of one data set, partition and seed.
rule partition:
    input:
        data=paths(DATASET),
    output:
        stored(PARTITION),
    log:
        "logs/partition/{partition}.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        cell=ask(lambda wc: project.partition_request(*cells_of(wc))),
        code=code("partition"),
    message:
        "Dividing {wildcards.partition}"
    shell:
        script(
            "partition",
            "--cell {params.cell:q} --data {input.data:q} --target {output:q}",
            measured="{wildcards.partition}",
        )
