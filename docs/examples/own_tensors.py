import torch, pflpipe

centres = torch.randn(3, 20, generator=torch.Generator().manual_seed(0))
def client(i):  # two kinds of clients, who disagree about what is what
    y = torch.randint(0, 3, (60,))
    return centres[(y + i % 2) % 3] + torch.randn(60, 20), y

result = pflpipe.train("feddpa", [client(i) for i in range(50)], model=pflpipe.Model("mlp", (32,)),
    training=pflpipe.Training(rounds=20, local_epochs=2, batch_size=16, optimizer="sgd", lr=0.1),
    privacy=pflpipe.Privacy(epsilon=8, delta=1e-3, clip_norm=0.5), classes=3)
print(result.accuracies, result.ledger)
