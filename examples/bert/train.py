"""BERT pre-training: keyword inputs, two losses, a learning rate of its own for every update.

    python train.py                      plan: cut the model for the pool in node_data/
    ravnest run train.py --nodes 3       train: this file once per provider
    ravnest fuse                         one state_dict of the whole model

Only the plan needs transformers; providers have their stages from node_data/.
"""

import argparse
import os
from collections.abc import Callable
from typing import Any

import torch
from data import NOT_ASKED, PAD, MaskedPages
from torch import Tensor, nn
from torch.utils.data import DataLoader

from ravnest import Node, Trainer, clusterize, set_seed

SEED = 42
INPUTS = ("input_ids", "token_type_ids", "attention_mask")
Batch = dict[str, Tensor]


class PretrainingTrainer(Trainer):
    """The training loop written out. Trainer's own would take these batches too."""

    def train(self) -> None:
        self.prelim_checks()  # Stems and Leaf serve in here, and leave train() when all is done
        for epoch in range(self.epochs):
            for batch in self.train_loader:
                inputs = {name: batch[name] for name in INPUTS}
                self.node.forward_compute(data_id=self.n_forwards, **inputs)
                self.n_forwards += 1
            self.node.wait_for_backwards()
            losses = [batch.loss for batch in self.node.finished_batches() if batch.loss]
            self.evaluate()
            found = ", ".join(f"{name} {value:.3f}" for name, value in self.metrics.items())
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f}; validation: {found}")
        if self.save:
            self.node.trigger_save_submodel()
        self.node.finish_training()


def make_model(options: argparse.Namespace) -> nn.Module:
    from transformers import BertConfig, BertForPreTraining

    set_seed(SEED)
    config = BertConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=4 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        max_position_embeddings=options.length,
        pad_token_id=PAD,
        initializer_range=options.width**-0.5,  # the usual 0.02 is meant for wide models
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
    )
    model: nn.Module = BertForPreTraining(config)
    return model


def make_loaders(options: argparse.Namespace) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    generator = torch.Generator().manual_seed(SEED)  # Root and Leaf shuffle alike
    train = MaskedPages(options.examples, options.length, options.vocabulary, seed=1)
    test = MaskedPages(options.examples // 10, options.length, options.vocabulary, seed=2)
    return (
        DataLoader(train, batch_size=options.batch_size, shuffle=True, generator=generator),
        DataLoader(test, batch_size=options.batch_size),
    )


def criterion(outputs: Any, batch: Batch) -> Tensor:
    """The hidden words, and whether the second piece follows the first."""
    words = nn.functional.cross_entropy(
        outputs.prediction_logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=NOT_ASKED
    )
    following = nn.functional.cross_entropy(
        outputs.seq_relationship_logits, batch["next_sentence_label"]
    )
    return words + following


def words_right(outputs: Any, batch: Batch) -> tuple[float, int]:
    asked = batch["labels"] != NOT_ASKED
    right = outputs.prediction_logits.argmax(-1)[asked] == batch["labels"][asked]
    return float(right.sum()), len(right)


def following_right(outputs: Any, batch: Batch) -> tuple[float, int]:
    right = outputs.seq_relationship_logits.argmax(-1) == batch["next_sentence_label"]
    return float(right.sum()), len(right)


def warm_up(updates: int) -> Callable[[int], float]:
    """Up over the first tenth of the updates, then down to nothing."""
    top = max(1, updates // 10)
    return lambda update: min((update + 1) / top, (updates - update) / max(1, updates - top))


def plan(options: argparse.Namespace) -> None:
    batch = next(iter(make_loaders(options)[0]))
    clusterize(
        make_model(options),
        example_kwargs={name: batch[name] for name in INPUTS},
        # One cluster of everybody, even if fewer would be faster: the point is to see all work.
        max_clusters=1,
    )


def most_frequent(options: argparse.Namespace) -> float:
    """Share of the asked words one gets right by always saying the most frequent one."""
    asked = torch.cat([batch["labels"].flatten() for batch in make_loaders(options)[1]])
    asked = asked[asked != NOT_ASKED]
    return float(torch.bincount(asked).max() / len(asked))


def provide(options: argparse.Namespace) -> None:
    set_seed(SEED)
    train, test = make_loaders(options)
    node = Node(  # which one, RAVNEST_NODE says
        optimizer=torch.optim.AdamW,
        optimizer_params={"lr": options.lr, "weight_decay": 0.01},
        lr_scheduler=torch.optim.lr_scheduler.LambdaLR,
        lr_scheduler_params={"lr_lambda": warm_up(options.epochs * len(train))},
        lr_step_on_epoch_change=False,
        clip_grad_norm=1.0,
        criterion=criterion,
        metrics={"words": words_right, "following": following_right},
        labels=train,
        test_labels=test,
    )
    trainer = PretrainingTrainer(
        node=node, train_loader=train, val_loader=test, epochs=options.epochs, save=True
    )
    trainer.train()
    trainer.evaluate()
    if node.is_root:
        words, frequent = trainer.metrics["words"], most_frequent(options)
        print(f"hidden words found: {words:.1%}; by saying the most frequent one: {frequent:.1%}")
        print(f"pieces told apart: {trainer.metrics['following']:.1%}; by chance: 50%")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Small BERT; plans, or trains as RAVNEST_NODE.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--length", type=int, default=64, help="words in an example")
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--examples", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="a tiny model and few examples")
    options = parser.parse_args(arguments)
    if options.quick:
        options.dropout = 0.0
        options.width, options.layers, options.vocabulary, options.length = 32, 2, 300, 32
        options.epochs, options.examples, options.batch_size, options.lr = 2, 1280, 16, 5e-3
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if "RAVNEST_NODE" in os.environ:
        provide(options)
    else:
        plan(options)


if __name__ == "__main__":
    main()
