# From studies/*.yaml to tables, figures, an MLflow experiment and a report. README.md says how to call it;
# each file of workflow/rules is one step, workflow/rules/common.smk what they share.
include: "workflow/rules/common.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/features.smk"
include: "workflow/rules/partition.smk"
include: "workflow/rules/plan.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/choose.smk"
include: "workflow/rules/audit.smk"
include: "workflow/rules/table.smk"
include: "workflow/rules/figure.smk"
include: "workflow/rules/attack.smk"
include: "workflow/rules/track.smk"
include: "workflow/rules/ledger.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/released.smk"
include: "workflow/rules/hooks.smk"


# On a cluster, rules with `localrule: True` run beside snakemake itself: they take seconds, or need the network.
rule all:
    default_target: True
    input:
        f"{RESULTS}/tables/all.csv",
        f"{RESULTS}/report.html",
        f"{RESULTS}/ledger.html",
    localrule: True
