/* true: succeeds. */

int main(void)
{
    return 0;
}
