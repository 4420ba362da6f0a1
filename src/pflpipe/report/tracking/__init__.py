"""From results on disk to MLflow (docs/mlflow.md)."""
