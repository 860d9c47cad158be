/* Feeds 32-bit words from standard input to a TestU01 battery; prints one line "statistic <tab> p-value" for each.
   Usage: noise_quality small|rabbit|crush forward|reversed.  Built by noise_quality.py; owns no stream of its own. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <testu01/bbattery.h>
#include <testu01/swrite.h>
#include <testu01/unif01.h>

#define WORDS (1 << 16)
#define RABBIT_BITS 1073741824.0

static uint32_t buffer[WORDS];
static size_t next_word = WORDS;
static unsigned long long words_read = 0;

static unsigned int word(void) {
    if (next_word == WORDS) {
        if (fread(buffer, sizeof(uint32_t), WORDS, stdin) != WORDS) {
            fprintf(stderr, "the stream ended after %llu words\n", words_read);
            exit(3);
        }
        next_word = 0;
        words_read += WORDS;
    }
    return buffer[next_word++];
}

/* Most tests look at the leading bits only: reversed, the trailing ones get the same scrutiny. */
static unsigned int reversed(void) {
    uint32_t v = word();
    v = ((v >> 1) & 0x55555555u) | ((v & 0x55555555u) << 1);
    v = ((v >> 2) & 0x33333333u) | ((v & 0x33333333u) << 2);
    v = ((v >> 4) & 0x0F0F0F0Fu) | ((v & 0x0F0F0F0Fu) << 4);
    return __builtin_bswap32(v);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    swrite_Basic = FALSE;
    unif01_Gen *generator =
        unif01_CreateExternGenBits("dropscope", strcmp(argv[2], "reversed") ? word : reversed);
    FILE *result = stderr; /* TestU01 prints its own summary on standard output */
    if (strcmp(argv[1], "crush") == 0)
        bbattery_Crush(generator);
    else if (strcmp(argv[1], "rabbit") == 0)
        bbattery_Rabbit(generator, RABBIT_BITS);
    else
        bbattery_SmallCrush(generator);
    for (int i = 0; i < bbattery_NTests; i++)
        fprintf(result, "%s\t%.17g\n", bbattery_TestNames[i], bbattery_pVal[i]);
    fprintf(result, "words read\t%llu\n", words_read);
    unif01_DeleteExternGenBits(generator);
    return 0;
}
