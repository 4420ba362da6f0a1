# results/partitions/<id>.npz: who holds which example, shared by all cells of one data set, partition and seed.
rule partition:
    input:
        script=SCRIPTS / "partition.py",
        code=PROJECT.code("partition"),
        data=lambda wc: each(DATASET, cells_of(wc)),
    output:
        PARTITION,
    log:
        "logs/partition/{partition}.log",
    benchmark:
        f"{RESULTS}/benchmarks/partition/{{partition}}.tsv"
    conda:
        "../../envs/pflpipe.yaml"
    params:
        cell=lambda wc: partition_request(*cells_of(wc)),
    message:
        "Dividing {wildcards.partition}"
    shell:
        "python {input.script} --cell {params.cell:q} --data {input.data:q} --target {output:q} > {log} 2>&1"
