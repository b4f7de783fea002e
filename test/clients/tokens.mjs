// Counts the tokens of texts: a list of strings comes in as JSON, a list of numbers goes out. The tokenizer is o200k_base.
import { readFileSync } from 'node:fs';
import { encode } from 'gpt-tokenizer/encoding/o200k_base';

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, 'utf8')).map((text) => encode(text).length)));
