"""What the demo model knows about machine learning: one record a concept.

Each record is (names as they occur in questions, definition, details, more). Data only.
"""

from __future__ import annotations

# Tables stay dense: what belongs together stands together.
# fmt: off

Record = tuple[tuple[str, ...], str, str, str]

LEARNING: tuple[Record, ...] = (
    (("machine learning", "ML", "machine-learning"),
     "Machine learning is a way of making computers learn from examples instead of following rules written "
     "by hand.",
     "A model looks at many examples, measures how wrong its predictions are, and adjusts its parameters "
     "until they get better. "
     "It is used for translation, speech recognition, recommendations and language models like me.",
     "There are three main kinds: supervised learning, unsupervised learning and reinforcement learning."),
    (("artificial intelligence", "AI", "A.I."),
     "Artificial intelligence is the field of building machines that do things we would call intelligent "
     "when people do them.",
     "That includes understanding language, recognising images, planning and playing games. "
     "Most of today's artificial intelligence is built with machine learning.",
     "The field began in the 1950s, and large language models are its best known result today."),
    (("deep learning", "DL"),
     "Deep learning is machine learning with neural networks that have many layers.",
     "Each layer turns its input into a slightly more useful description, so the network can learn "
     "complicated patterns from raw data. "
     "It needs a lot of data and fast hardware such as GPUs.",
     "Deep learning is behind image recognition, speech recognition and large language models."),
    (("a neural network", "neural networks", "neural nets", "a neural net", "an artificial neural network"),
     "A neural network is a function made of layers of simple units whose connections have weights that can "
     "be learned.",
     "Numbers go in on one side, are multiplied by the weights and passed through simple nonlinear "
     "functions, and predictions come out on the other side. "
     "Training changes the weights so that the predictions improve.",
     "The design was loosely inspired by the nerve cells in the brain."),
    (("a large language model", "large language models", "an LLM", "LLMs", "LLM", "the term LLM"),
     "A large language model, or LLM, is a neural network that is trained on text to predict the next token.",
     "By predicting one token after another it can answer questions, write stories, translate and call "
     "tools. "
     "Large ones have billions of parameters and run on GPUs.",
     "I am a language model too, but a very small one with about four million parameters."),
    (("a language model", "language models", "language modelling", "language modeling"),
     "A language model is a model that gives a probability to every possible next piece of a text.",
     "Choosing a next piece again and again produces new text. "
     "Modern language models are transformers that were trained on a great deal of text.",
     "I am a language model with about four million parameters."),
    (("a transformer", "transformers", "the transformer architecture", "the transformer",
      "a transformer model"),
     "A transformer is a neural network architecture that uses attention to let every token look at the "
     "tokens before it.",
     "It stacks layers of attention and feed-forward networks, and it can process all the tokens of a "
     "prompt in parallel. "
     "Almost all large language models are transformers.",
     "The architecture was introduced in 2017 in a paper called Attention Is All You Need."),
    (("attention", "self-attention", "the attention mechanism", "attention in transformers",
      "an attention layer"),
     "Attention is the part of a transformer that decides which earlier tokens matter for the current one.",
     "Each token makes a query, a key and a value; queries are compared with keys, and the result is a "
     "weighted sum of values. "
     "This is how a model connects words that are far apart.",
     "Keys and values of earlier tokens are kept in the KV cache, so that they are computed only once."),
    (("a token", "tokens", "tokens in language models", "a token in an LLM"),
     "A token is the small piece of text that a language model reads and writes, such as a word, part of a "
     "word or a punctuation mark.",
     "Every token has a number, and the model only ever sees these numbers. "
     "In English one token is about four characters on average.",
     "The speed of a language model is usually given in tokens per second."),
    (("a tokenizer", "tokenizers", "tokenization", "tokenizing", "the tokenizer"),
     "A tokenizer turns text into tokens, and tokens back into text.",
     "It has a fixed vocabulary of pieces, often found by byte pair encoding, and gives each piece a number. "
     "The model works only with these numbers.",
     "In Inflight the gateway tokenizes the prompt and turns the new tokens back into text while they "
     "stream."),
    (("byte pair encoding", "BPE", "byte-level BPE", "byte-pair encoding"),
     "Byte pair encoding, or BPE, is a method that builds the vocabulary of a tokenizer by merging frequent "
     "pairs of pieces.",
     "It starts with single bytes and joins the most frequent neighbours again and again until the "
     "vocabulary is large enough. "
     "Frequent words become one token, and rare words are split into several.",
     "My own tokenizer is a byte-level BPE with about three thousand pieces."),
    (("a vocabulary", "the vocabulary of a model", "the vocabulary", "a model's vocabulary"),
     "The vocabulary of a language model is the list of all the tokens that it knows.",
     "For each step the model computes one score for every token of the vocabulary. "
     "Typical vocabularies have from 32 thousand to 250 thousand tokens.",
     "Mine has about three thousand tokens, because I am very small."),
    (("an embedding", "embeddings", "a word embedding", "word embeddings", "token embeddings"),
     "An embedding is a list of numbers that represents a token, a sentence or an image.",
     "Things with similar meaning get embeddings that lie close together. "
     "The first layer of a language model turns each token into its embedding.",
     "Embeddings of whole texts are used for search, because similar texts can be found by comparing them."),
    (("a parameter", "parameters", "weights", "model weights", "the parameters of a model",
      "the weights of a model"),
     "Parameters, also called weights, are the numbers inside a model that are learned during training.",
     "Together they hold everything that the model knows. "
     "Large models have billions of parameters, which is why they need so much memory.",
     "With two bytes per parameter, a model of seven billion parameters needs about 14 gigabytes."),
    (("training", "model training", "training a model", "how models are trained", "the training of a model"),
     "Training is the process in which a model learns its parameters from data.",
     "The model makes predictions, a loss function measures the errors, and gradient descent changes the "
     "parameters a little to reduce them. "
     "This is repeated millions of times.",
     "I was trained in a few minutes on one GPU, on text made by a script."),
    (("inference", "model inference", "LLM inference", "inference in machine learning"),
     "Inference is the use of a trained model to make predictions.",
     "For a language model it means reading a prompt and generating new tokens one after another. "
     "Inference servers such as Inflight do this for many users at the same time.",
     "It has two phases: prefill reads the prompt, and decode writes the answer."),
    (("gradient descent", "stochastic gradient descent", "SGD"),
     "Gradient descent is the method that trains most models: it changes each parameter a little in the "
     "direction that reduces the error.",
     "The gradient says how the error changes with each parameter, and the learning rate says how large the "
     "steps are. "
     "Usually each step looks only at a small batch of examples.",
     "Popular variants are Adam and AdamW; I was trained with AdamW."),
    (("backpropagation", "backprop", "back propagation"),
     "Backpropagation is the algorithm that computes how much each weight of a neural network contributed "
     "to the error.",
     "It works backwards from the output to the input and uses the chain rule of calculus. "
     "Gradient descent then uses these gradients to improve the weights.",
     "It makes training about three times as much work as inference for the same tokens."),
    (("a loss function", "the loss", "loss functions", "the loss function", "training loss"),
     "A loss function measures how wrong a model's predictions are.",
     "Training tries to make this number as small as possible. "
     "Language models use the cross entropy of the next token.",
     "When the loss falls on new data as well, the model has really learned something."),
    (("overfitting", "over-fitting", "an overfitted model"),
     "Overfitting means that a model learns its training examples by heart and fails on new ones.",
     "It happens when the model is too large for its data or trains for too long. "
     "More data, regularization and early stopping help against it.",
     "One notices it when the error on held-out data rises while the training error still falls."),
    (("supervised learning", "supervised machine learning"),
     "Supervised learning is machine learning from examples that come with the right answers.",
     "The model sees an input, predicts an answer, and is corrected by the label. "
     "Classification and regression are typical supervised tasks.",
     "A spam filter that learns from labelled mail is a good example."),
    (("unsupervised learning", "unsupervised machine learning"),
     "Unsupervised learning finds structure in data that has no labels.",
     "Typical tasks are grouping similar things together and finding a simpler description of the data.",
     "Clustering customers by what they buy is a good example."),
    (("reinforcement learning", "RL"),
     "Reinforcement learning is learning by trial and error from rewards.",
     "An agent tries actions, receives rewards, and learns which actions lead to more reward in the long "
     "run. "
     "It is used for games, robots and for tuning language models.",
     "When the reward comes from human preferences, it is called RLHF."),
    (("fine-tuning", "finetuning", "fine tuning", "fine-tuning a model"),
     "Fine-tuning means training an already trained model a little more on data for a special purpose.",
     "It needs far less data and time than training from the beginning. "
     "Methods like LoRA train only a small number of additional weights.",
     "Chat models are fine-tuned on conversations, so that they answer instead of only continuing a text."),
    (("LoRA", "low-rank adaptation", "a LoRA adapter", "LoRA adapters"),
     "LoRA, or low-rank adaptation, fine-tunes a model by adding small trainable matrices next to frozen "
     "weights.",
     "The small matrices take little memory, so one server can hold many adapters for one base model. "
     "The original weights do not change.",
     "TensorRT-LLM can serve many LoRA adapters with one engine."),
    (("a prompt", "prompts", "prompting", "the prompt"),
     "A prompt is the text that you give to a language model.",
     "It can hold instructions, questions, examples and earlier messages of the conversation. "
     "The model continues the prompt with its answer.",
     "Clear prompts give better answers."),
    (("a system prompt", "system prompts", "the system prompt", "a system message"),
     "A system prompt is the first message of a conversation and tells the model how to behave.",
     "It can set the role, the style and the rules for the answers. "
     "In the OpenAI API it has the role system or developer.",
     "I follow a few simple system prompts, such as answering briefly or speaking like a pirate."),
    (("a chat template", "chat templates", "the chat template"),
     "A chat template turns a list of chat messages into the one text that a model reads.",
     "It marks where each message begins and ends and who wrote it. "
     "Templates are written in Jinja and come with the model.",
     "In Inflight the gateway applies the chat template before it tokenizes the prompt."),
    (("a context window", "the context window", "context length", "the context length"),
     "The context window is the largest number of tokens that a model can look at, prompt and answer "
     "together.",
     "Text beyond it cannot be used. "
     "Large models have windows of a hundred thousand tokens and more.",
     "My own context window is 2048 tokens."),
    (("temperature", "the temperature parameter", "sampling temperature", "the temperature setting"),
     "Temperature controls how random the answers of a language model are.",
     "At temperature 0 the model always takes the most likely token; higher values make unlikely tokens "
     "more frequent. "
     "Low values suit facts and code, and higher values suit creative writing.",
     "By default I answer greedily, which means without any randomness."),
    (("top-p sampling", "top-p", "top_p", "nucleus sampling", "top p"),
     "Top-p sampling chooses the next token only from the smallest set of tokens whose probabilities add up "
     "to p.",
     "It removes the long tail of unlikely tokens but keeps some variety. "
     "It is also called nucleus sampling.",
     "A common value for p is 0.9."),
    (("top-k sampling", "top-k", "top_k", "top k"),
     "Top-k sampling chooses the next token only among the k most likely ones.",
     "With k equal to 1 this is the same as greedy decoding. "
     "It is often combined with top-p and temperature.",
     "A common value for k is 50."),
    (("greedy decoding", "greedy sampling", "greedy search"),
     "Greedy decoding always takes the most likely next token.",
     "The same prompt then gives the same answer each time. "
     "It is simple and exact, but less varied than sampling.",
     "It is my default."),
    (("beam search", "beams"),
     "Beam search keeps several of the best partial answers and extends all of them at each step.",
     "In the end it returns the answer with the highest total probability. "
     "It is used in translation and costs more than greedy decoding.",
     "The number of partial answers is called the beam width."),
    (("log probabilities", "logprobs", "log probs", "a logprob"),
     "Log probabilities tell how likely a model found each token that it chose.",
     "A value near zero means the model was sure, and a very negative value means it was not. "
     "In the OpenAI API you ask for them with the field logprobs.",
     "They are logarithms because products of many small probabilities become too small to compute with."),
    (("a hallucination", "hallucinations", "hallucination in AI", "hallucinations in language models"),
     "A hallucination is a statement by a language model that sounds right but is not true.",
     "Models predict likely text and do not check facts by themselves. "
     "It helps to let them use tools or to give them the right documents.",
     "I am very small, so please check what I say."),
    (("RAG", "retrieval-augmented generation", "retrieval augmented generation"),
     "Retrieval-augmented generation, or RAG, gives a language model documents that were found by a search "
     "before it answers.",
     "The answer can then use facts that are new or private. "
     "The search often compares embeddings of the question and the documents.",
     "It reduces hallucinations, because the model can quote what it has just read."),
    (("tool calling", "function calling", "tool use", "a tool call", "tool calls"),
     "Tool calling means that a language model asks the program around it to run a function.",
     "The model writes the name of the function and its arguments as JSON, the program runs it, and the "
     "model uses the result in its answer. "
     "So a model can look up the weather, search or calculate.",
     "I know one tool-call format myself: give me a tool and try it."),
    (("Llama", "the Llama architecture", "Llama models", "LLaMA"),
     "Llama is a family of open language models, and its transformer design became a common standard.",
     "It uses rotary position embeddings, RMS normalization and SwiGLU feed-forward layers. "
     "Many other models, and I as well, share this architecture.",
     "Newer Llama models use grouped-query attention to keep the KV cache small."),
    (("a mixture of experts", "mixture of experts", "MoE", "MoE models"),
     "A mixture of experts is a model with many feed-forward networks of which each token uses only a few.",
     "A small router picks the experts for each token. "
     "The model can have many parameters while each token costs little.",
     "Expert parallelism places the experts on different GPUs."),
    (("a dataset", "datasets", "training data", "a data set"),
     "Training data is the collection of examples that a model learns from.",
     "Its quality and variety matter more than almost anything else. "
     "A part of it is kept out of training to test the model.",
     "My own training data was written by a script with templates and grammars."),
)
